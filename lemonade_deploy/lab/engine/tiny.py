# SPDX-License-Identifier: Apache-2.0
"""A tiny random Qwen3 chat model (about 1 MB), byte for byte the same on every machine.

For tests where only the plumbing counts: the forward pass is a real one, the words mean nothing.
Weights are 8-bit integers times a power of two, so float16, bfloat16 and float32 hold them exactly.
Output rows of all tokens but whole words and the end mark are zero: the reply is readable and ends.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from itertools import pairwise

from .tensors import Tensor, Value, gguf, safetensors

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, CONTEXT, VOCAB = 64, 2, 4, 2, 32, 128, 8192, 448
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SEED = 25  # its replies are never empty and mostly end by themselves
CORPUS = (
    "The server on this host answers a chat completion with real tokens.",
    "system user assistant hello world how are you today",
    "a provisioning kit lays down a bundle then starts it and asks it to speak",
    "one two three four five six seven eight nine ten zero",
    "You are a helpful assistant. Say something short about the weather.",
    "red green blue black white small large river mountain forest city garden",
)
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for each byte (its encoder.py)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    others = [byte for byte in range(256) if byte not in letters]
    return letters | {byte: chr(256 + index) for index, byte in enumerate(others)}


def train() -> tuple[list[str], list[tuple[str, str]]]:
    """Byte-level BPE over the corpus: the vocabulary in the order of ids, and the merges."""
    letters = byte_letters()
    words = Counter(
        tuple(letters[byte] for byte in word.encode())
        for line in CORPUS
        for word in re.findall(r" ?[A-Za-z]+| ?[^\sA-Za-z]+", line)
    )
    vocabulary = [END_OF_TEXT, IM_START, IM_END, *sorted(letters.values())]
    merges: list[tuple[str, str]] = []
    while len(vocabulary) < VOCAB:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        vocabulary.append("".join(best))
        words = Counter({_merge(word, best): count for word, count in words.items()})
    return vocabulary, merges


def _merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    merged: list[str] = []
    for letter in word:
        if merged and (merged[-1], letter) == pair:
            merged[-1] += letter
        else:
            merged.append(letter)
    return tuple(merged)


def weights(vocabulary: list[str]) -> dict[str, Tensor]:
    """All tensors under Hugging Face's names for Qwen3."""
    source = random.Random(SEED)  # noqa: S311 - a fixed sequence is the point

    def some(*shape: int, scale: float) -> Tensor:
        rows, columns = shape
        return Tensor(shape, [(source.getrandbits(8) - 128) * scale / 128 for _ in range(rows * columns)])

    def ones(size: int) -> Tensor:
        return Tensor((size,), [1.0] * size)

    tensors = {"model.embed_tokens.weight": some(VOCAB, HIDDEN, scale=1.0)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        tensors[at + "self_attn.q_proj.weight"] = some(HEADS * HEAD_DIM, HIDDEN, scale=0.25)
        tensors[at + "self_attn.k_proj.weight"] = some(KV_HEADS * HEAD_DIM, HIDDEN, scale=0.25)
        tensors[at + "self_attn.v_proj.weight"] = some(KV_HEADS * HEAD_DIM, HIDDEN, scale=0.25)
        tensors[at + "self_attn.o_proj.weight"] = some(HIDDEN, HEADS * HEAD_DIM, scale=0.25)
        tensors[at + "self_attn.q_norm.weight"] = ones(HEAD_DIM)
        tensors[at + "self_attn.k_norm.weight"] = ones(HEAD_DIM)
        tensors[at + "mlp.gate_proj.weight"] = some(FFN, HIDDEN, scale=0.25)
        tensors[at + "mlp.up_proj.weight"] = some(FFN, HIDDEN, scale=0.25)
        tensors[at + "mlp.down_proj.weight"] = some(HIDDEN, FFN, scale=0.25)
        tensors[at + "input_layernorm.weight"] = ones(HIDDEN)
        tensors[at + "post_attention_layernorm.weight"] = ones(HIDDEN)
    tensors["model.norm.weight"] = ones(HIDDEN)
    tensors["lm_head.weight"] = _head(some(VOCAB, HIDDEN, scale=1.0), vocabulary)
    return tensors


def _head(drawn: Tensor, vocabulary: list[str]) -> Tensor:
    words = set(re.findall(r"[A-Za-z]+", " ".join(CORPUS)))
    values: list[float] = []
    for index, token in enumerate(vocabulary):
        row = drawn.values[index * HIDDEN : (index + 1) * HIDDEN]
        if token == IM_END:
            values += [round(value * 80) / 64 for value in row]  # x 1.25: a little likelier than a word
        elif token[0] == "\u0120" and token[1:] in words:
            values += row
        else:
            values += [0.0] * HIDDEN
    return Tensor(drawn.shape, values)


def hugging_face_files() -> dict[str, bytes]:
    """The model as files of a Hugging Face repository that vLLM and transformers load."""
    vocabulary, merges = train()
    return {
        "config.json": _json(
            {
                "architectures": ["Qwen3ForCausalLM"],
                "model_type": "qwen3",
                "vocab_size": VOCAB,
                "hidden_size": HIDDEN,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS,
                "num_key_value_heads": KV_HEADS,
                "head_dim": HEAD_DIM,
                "intermediate_size": FFN,
                "max_position_embeddings": CONTEXT,
                "hidden_act": "silu",
                "rms_norm_eps": 1e-6,
                "rope_theta": 10000.0,
                "attention_bias": False,
                "tie_word_embeddings": False,
                # float16: vLLM's "auto" turns float32 files into bfloat16 (other rounding).
                "torch_dtype": "float16",
                "use_cache": True,
                "use_sliding_window": False,
                "sliding_window": None,
                **_ids(),
            }
        ),
        "generation_config.json": _json(_ids()),
        "model.safetensors": safetensors(weights(vocabulary)),
        "tokenizer.json": _json(_tokenizer(vocabulary, merges)),
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": CONTEXT,
                "eos_token": IM_END,
                "pad_token": END_OF_TEXT,
                "clean_up_tokenization_spaces": False,
                "chat_template": CHAT_TEMPLATE,
            }
        ),
    }


def _ids() -> dict[str, int]:
    return {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def _tokenizer(vocabulary: list[str], merges: list[tuple[str, str]]) -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, **flags} for i, text in enumerate(vocabulary[:3])],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(vocabulary)},
            "merges": [list(pair) for pair in merges],
        },
    }


GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GGUF_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_file() -> bytes:
    """The same weights for llama.cpp."""
    vocabulary, merges = train()
    metadata: dict[str, Value] = {
        "general.architecture": "qwen3",
        "general.name": "tiny-qwen3",
        "qwen3.context_length": CONTEXT,
        "qwen3.embedding_length": HIDDEN,
        "qwen3.block_count": LAYERS,
        "qwen3.feed_forward_length": FFN,
        "qwen3.attention.head_count": HEADS,
        "qwen3.attention.head_count_kv": KV_HEADS,
        "qwen3.attention.key_length": HEAD_DIM,
        "qwen3.attention.value_length": HEAD_DIM,
        "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen3.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (VOCAB - 3),  # control, then normal
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    return gguf(metadata, {_gguf_name(name): tensor for name, tensor in weights(vocabulary).items()})


def _gguf_name(name: str) -> str:
    found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    return f"blk.{found[1]}.{GGUF_NAMES[found[2]]}.weight" if found else GGUF_TOP[name]
