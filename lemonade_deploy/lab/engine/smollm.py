# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct (trained weights, Apache-2.0) from its GGUF into a Hugging Face folder.

Run as a script by the engine's own interpreter, which has numpy, safetensors, tokenizers and gguf:
``python smollm.py FILE.gguf FOLDER``.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

# Undo what llama.cpp's convert_hf_to_gguf.py did to the names and to the rotary halves.
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3  # gguf's TokenType.CONTROL


class Source:
    """The GGUF's metadata and tensors."""

    def __init__(self, path: Path) -> None:
        self.reader: Any = importlib.import_module("gguf").GGUFReader(path)

    def __getitem__(self, key: str) -> Any:
        return self.reader.fields[key].contents()


def tensors(source: Source) -> dict[str, Any]:
    """Dequantised weights as float16 under Hugging Face's names."""
    numpy: Any = importlib.import_module("numpy")
    quants: Any = importlib.import_module("gguf.quants")
    heads = {
        "attn_q": source["llama.attention.head_count"],
        "attn_k": source["llama.attention.head_count_kv"],
    }
    found: dict[str, Any] = {}
    for tensor in source.reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        if tensor.name == "token_embd.weight":
            name = "model.embed_tokens.weight"
        elif tensor.name == "output_norm.weight":
            name = "model.norm.weight"
        else:
            _, layer, part, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"
            if part in heads:
                rows, columns, count = values.shape[0], values.shape[1], heads[part]
                halves = values.reshape(count, rows // count // 2, 2, columns)
                values = halves.swapaxes(1, 2).reshape(rows, columns)
        found[name] = numpy.ascontiguousarray(values.astype(numpy.float16))
    return found


def tokenizer(source: Source) -> Any:
    """The tokenizer as a ``tokenizers.Tokenizer``."""
    library: Any = importlib.import_module("tokenizers")
    tokens = source["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in source["tokenizer.ggml.merges"]]
    vocabulary = {text: index for index, text in enumerate(tokens)}
    made = library.Tokenizer(library.models.BPE(vocab=vocabulary, merges=merges))
    digits = library.pre_tokenizers.Digits(individual_digits=True)
    letters = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = library.pre_tokenizers.Sequence([digits, letters])
    made.decoder = library.decoders.ByteLevel()
    kinds = source["tokenizer.ggml.token_type"]
    special = [text for text, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    made.add_special_tokens([library.AddedToken(text, special=True, normalized=False) for text in special])
    return made


def config(source: Source) -> dict[str, object]:
    """config.json; float16, because vLLM's "auto" would turn float32 into bfloat16."""
    heads = source["llama.attention.head_count"]
    hidden = source["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": len(source["tokenizer.ggml.tokens"]),
        "hidden_size": hidden,
        "num_hidden_layers": source["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": source["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "intermediate_size": source["llama.feed_forward_length"],
        "max_position_embeddings": source["llama.context_length"],
        "rms_norm_eps": 1e-5,
        "rope_theta": source["llama.rope.freq_base"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        **_ids(),
    }


def _ids() -> dict[str, int]:
    return {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def convert(source: Source, folder: Path) -> None:
    """Write the whole repository's files into *folder*."""
    save_file = importlib.import_module("safetensors.numpy").save_file
    save_file(tensors(source), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer(source).save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": source["llama.context_length"],
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": source["tokenizer.chat_template"],
    }
    contents = {
        "config.json": config(source),
        "generation_config.json": _ids(),
        "tokenizer_config.json": tokenizer_config,
    }
    for name, content in contents.items():
        text = json.dumps(content, indent=1, sort_keys=True) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    convert(Source(Path(sys.argv[1])), Path(sys.argv[2]))
