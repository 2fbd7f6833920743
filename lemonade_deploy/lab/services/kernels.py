# SPDX-License-Identifier: Apache-2.0
"""Simulated kernels as packages: image, modules, modules-extra, headers and the metas.

They hold no code, but everything that depmod, initramfs-tools, update-grub and dkms look at, and
their maintainer scripts run /etc/kernel/*.d as Ubuntu's do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from .. import catalog
from ..catalog import Kernel, Meta
from ..kmod import module_bytes, srcversion, vermagic, zstd_stored
from .debs import Deb, File, script

# What mkinitramfs and update-initramfs want to find, and nothing that asks for module signing.
CONFIG = """\
# Simulated kernel configuration ({release})
CONFIG_64BIT=y
CONFIG_MODULES=y
CONFIG_BLK_DEV_INITRD=y
CONFIG_RD_GZIP=y
CONFIG_RD_XZ=y
CONFIG_RD_LZ4=y
CONFIG_RD_ZSTD=y
CONFIG_TMPFS=y
CONFIG_DEVTMPFS=y
CONFIG_EXT4_FS=y
CONFIG_MODULE_COMPRESS_ZSTD=y
CONFIG_DRM_AMDGPU=m
CONFIG_HSA_AMD=y
"""
SYSTEM_MAP = "0000000000000000 A fixed_percpu_data\nffffffff81000000 T _text\n"
BUILTIN = ("kernel/fs/ext4/ext4.ko", "kernel/drivers/nvme/host/nvme.ko", "kernel/fs/overlayfs/overlay.ko")
# Exported by the stub ttm and used by the stub amdgpu: depmod finds the dependency.
TTM_SYMBOL = "ttm_bo_init_reserved"
AMDGPU_ALIAS = "pci:v00001002d*sv*sd*bc03sc*i*"
AMDGPU_PARMS = {"gttsize": "int", "cwsr_enable": "int", "noretry": "int"}
TTM_PARMS = {"pages_limit": "ulong", "page_pool_size": "ulong"}


def kernel_debs(kernel: Kernel, *, unsigned: bool = False, headers_depend: str = "") -> Iterator[Deb]:
    """The packages of one kernel; mainline builds call their image unsigned."""
    yield _image(kernel, f"linux-image-{'unsigned-' if unsigned else ''}{kernel.release}")
    yield from _modules(kernel)
    yield _headers(kernel, headers_depend)


def meta_deb(meta: Meta) -> Deb:
    """A meta package."""
    return Deb(
        meta.name,
        meta.version,
        "meta package of a simulated kernel",
        fields={"Section": "metapackages", "Depends": ", ".join(meta.depends)},
    )


def vmlinuz(release: str) -> bytes:
    """A boot image's header with its version text (what ``file`` reads), and nothing to run."""
    image = bytearray(4096)
    struct.pack_into("<H4sH", image, 0x1FE, 0xAA55, b"\xeb\x6aHd", 0x5372)
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<HIHH", image, 0x206, 0x020F, 0, 0, 0x0400)
    text = f"{release} (lab@simulated) #1 SMP PREEMPT_DYNAMIC simulated, holds no code".encode()
    image[0x600 : 0x600 + len(text)] = text
    return bytes(image)


def _image(kernel: Kernel, name: str) -> Deb:
    release = kernel.release
    scripts = ("preinst", "postinst", "prerm", "postrm")
    other = "linux-image-" if "-unsigned-" in name else "linux-image-unsigned-"
    return Deb(
        name,
        kernel.version,
        f"simulated Linux kernel image {release}",
        fields={
            "Depends": f"kmod, linux-base (>= 4.5), linux-modules-{release}",
            "Recommends": "grub-pc | grub-efi-amd64 | grub2-common, initramfs-tools | linux-initramfs-tool",
            "Provides": f"linux-image, {other}{release}",
        },
        files={f"/boot/vmlinuz-{release}": File(vmlinuz(release), 0o600)},
        scripts={name: script(f"linux-image.{name}", RELEASE=release) for name in scripts},
        triggers=f"interest linux-update-{release}\n",
    )


def _modules(kernel: Kernel) -> Iterator[Deb]:
    release, base = kernel.release, f"/lib/modules/{kernel.release}"
    stubs = _stub_modules(kernel)
    order = "".join(f"{path.removesuffix('.zst')}\n" for path in stubs)
    basic = {
        f"/boot/config-{release}": File(CONFIG.format(release=release).encode()),
        f"/boot/System.map-{release}": File(SYSTEM_MAP.encode(), 0o600),
        f"{base}/modules.order": File(order.encode()),
        f"{base}/modules.builtin": File("".join(f"{path}\n" for path in BUILTIN).encode()),
        f"{base}/modules.builtin.modinfo": File(
            b"".join(b"%s.license=GPL\0" % path.rpartition("/")[2][:-3].encode() for path in BUILTIN)
        ),
    }
    scripts = {name: script(f"linux-modules.{name}", RELEASE=release) for name in ("postinst", "postrm")}
    in_extra = {path for path in stubs if kernel.extra and "/amd/" in path}
    parts = {"modules": set(stubs) - in_extra, **({"modules-extra": in_extra} if kernel.extra else {})}
    for kind, paths in parts.items():
        depends = "kmod" if kind == "modules" else f"linux-image-{release}, linux-modules-{release}"
        yield Deb(
            f"linux-{kind}-{release}",
            kernel.version,
            f"simulated Linux kernel modules {release} ({kind})",
            fields={"Depends": depends},
            files={
                **(basic if kind == "modules" else {}),
                **{f"{base}/{path}": File(stubs[path]) for path in sorted(paths)},
            },
            scripts=scripts,
        )


def _stub_modules(kernel: Kernel) -> dict[str, bytes]:
    release = kernel.release

    def stub(
        name: str,
        *,
        exports: tuple[str, ...] = (),
        imports: tuple[str, ...] = (),
        aliases: tuple[str, ...] = (),
        parms: dict[str, str] | None = None,
        **lab_fields: str,
    ) -> bytes:
        return zstd_stored(
            module_bytes(
                name=name,
                version=None,
                srcversion=srcversion("in-tree", name, release),
                vermagic=vermagic(release),
                exports=exports,
                imports=imports,
                aliases=aliases,
                parms=parms,
                **lab_fields,
            )
        )

    drm = "kernel/drivers/gpu/drm"
    return {
        f"{drm}/ttm/ttm.ko.zst": stub("ttm", exports=(TTM_SYMBOL,), parms=TTM_PARMS),
        f"{drm}/amd/amdxcp/amdxcp.ko.zst": stub("amdxcp", exports=("amdgpu_xcp_drm_dev_alloc",)),
        f"{drm}/amd/amdgpu/amdgpu.ko.zst": stub(
            "amdgpu",
            imports=(TTM_SYMBOL, "amdgpu_xcp_drm_dev_alloc"),
            aliases=(AMDGPU_ALIAS,),
            parms=AMDGPU_PARMS,
            lab_cwsr=kernel.lab_cwsr,
            lab_gfx=catalog.GFX_TARGETS,
        ),
    }


def _headers(kernel: Kernel, depends: str) -> Deb:
    release = kernel.release
    source = f"/usr/src/linux-headers-{release}"
    config = CONFIG.format(release=release).encode()
    return Deb(
        f"linux-headers-{release}",
        kernel.version,
        f"simulated Linux kernel headers {release}",
        fields={
            "Section": "devel",
            "Provides": "linux-headers",
            **({"Depends": depends} if depends else {}),
        },
        files={
            f"{source}/Makefile": File(b"# Simulated kernel headers: nothing is compiled with them.\n"),
            f"{source}/.config": File(config),
            f"{source}/include/config/auto.conf": File(config),
            f"{source}/include/config/kernel.release": File(f"{release}\n".encode()),
            f"{source}/include/generated/utsrelease.h": File(f'#define UTS_RELEASE "{release}"\n'.encode()),
            f"{source}/Module.symvers": File(b""),
        },
        links={f"/lib/modules/{release}/build": source},
        scripts={"postinst": script("linux-headers.postinst", RELEASE=release)},
    )
