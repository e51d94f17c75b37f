"""GPUs that people own: memory, and the rates that the time model uses. Names are those of presets and flags.

Memory: NVML total, and what a process may hold (total less what the driver keeps), in MiB as nvidia-smi prints them.
Rates are sustained, not headline, for a model of hidden size 3584 and heads of 128. H200: measured 2026-11-29 (GEMM
740-810, torch's SDPA flash forward+backward 325, pinned PCIe copies 55). Others: vendor dense 16-bit peak (fp32
accumulation) times a share that large GEMMs reach on that card, SDPA flash from FlashAttention-2's published figures;
assumed until a rehearsal replaces them. MI300X: longfit was never run on AMD, its plans say so; (9, 4) is gfx942.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.attention_kernels import AMD_CAPABILITIES
from planner.catalog.peaks import PEAK_TFLOPS
from planner.catalog.prices import DOLLARS_PER_HOUR
from planner.types import GpuSpec

MIB = 1024**2


def _gpu(
    name: str, total_mib: int, usable_mib: int, capability: tuple[int, int], *,
    gemm: float, fp32: float, attention: float, memory: float, pcie: float, link: float,
) -> GpuSpec:  # fmt: skip
    """gemm, fp32 and attention in TFLOP/s, memory, pcie and link in GB/s."""
    return GpuSpec(
        name=name, kind="cuda", memory_bytes=total_mib * MIB, usable_bytes=usable_mib * MIB,
        compute_capability=capability, gemm_flops=gemm * 1e12, fp32_flops=fp32 * 1e12,
        attention_flops=attention * 1e12,
        memory_bytes_per_s=memory * 1e9, pcie_bytes_per_s=pcie * 1e9, link_bytes_per_s=link * 1e9,
        dollars_per_hour=DOLLARS_PER_HOUR.get(name), peak_flops=PEAK_TFLOPS[name] * 1e12,
        vendor="amd" if capability in AMD_CAPABILITIES else "nvidia",
    )  # fmt: skip


GPUS: Mapping[str, GpuSpec] = {
    gpu.name: gpu
    for gpu in (
        _gpu("T4", 15360, 14910, (7, 5), gemm=26, fp32=5.5, attention=12, memory=240, pcie=12, link=10),
        _gpu("V100-16G", 16384, 16130, (7, 0), gemm=88, fp32=13, attention=35, memory=760, pcie=12, link=120),
        _gpu("V100-32G", 32768, 32480, (7, 0), gemm=88, fp32=13, attention=35, memory=760, pcie=12, link=120),
        _gpu("RTX-2080-Ti", 11264, 11010, (7, 5), gemm=45, fp32=11, attention=20, memory=520, pcie=12, link=10),
        _gpu("RTX-3060-12G", 12288, 12030, (8, 6), gemm=21, fp32=10, attention=20, memory=305, pcie=12, link=8),
        _gpu("RTX-3070", 8192, 7940, (8, 6), gemm=33, fp32=16, attention=30, memory=380, pcie=24, link=10),
        _gpu("RTX-3080-10G", 10240, 10000, (8, 6), gemm=50, fp32=24, attention=45, memory=640, pcie=24, link=10),
        _gpu("RTX-3090", 24576, 24110, (8, 6), gemm=60, fp32=27, attention=55, memory=800, pcie=24, link=10),
        _gpu("RTX-3090-Ti", 24564, 24070, (8, 6), gemm=68, fp32=31, attention=62, memory=860, pcie=24, link=10),
        _gpu("RTX-4060", 8188, 7930, (8, 9), gemm=27, fp32=12, attention=25, memory=230, pcie=12, link=8),
        _gpu("RTX-4060-Ti-16G", 16380, 16050, (8, 9), gemm=38, fp32=18, attention=36, memory=245, pcie=12, link=8),
        _gpu("RTX-4070", 12282, 11990, (8, 9), gemm=50, fp32=25, attention=47, memory=430, pcie=24, link=10),
        _gpu("RTX-4070-Ti-SUPER", 16376, 16040, (8, 9), gemm=75, fp32=37, attention=70, memory=570, pcie=24, link=10),
        _gpu("RTX-4080", 16376, 16040, (8, 9), gemm=83, fp32=41, attention=78, memory=610, pcie=24, link=10),
        _gpu("RTX-4090", 24564, 24070, (8, 9), gemm=140, fp32=60, attention=130, memory=860, pcie=24, link=10),
        _gpu("RTX-5060-Ti-16G", 16311, 15970, (12, 0), gemm=40, fp32=20, attention=36, memory=380, pcie=25, link=10),
        _gpu("RTX-5070", 12227, 11930, (12, 0), gemm=52, fp32=26, attention=47, memory=570, pcie=50, link=20),
        _gpu("RTX-5070-Ti", 16303, 15960, (12, 0), gemm=75, fp32=37, attention=66, memory=760, pcie=50, link=20),
        _gpu("RTX-5080", 16303, 15960, (12, 0), gemm=96, fp32=47, attention=85, memory=815, pcie=50, link=20),
        _gpu("RTX-5090", 32607, 32000, (12, 0), gemm=178, fp32=88, attention=160, memory=1520, pcie=50, link=20),
        _gpu("RTX-A5000", 24564, 24070, (8, 6), gemm=90, fp32=24, attention=75, memory=650, pcie=24, link=18),
        _gpu("RTX-A6000", 49140, 48520, (8, 6), gemm=115, fp32=30, attention=95, memory=650, pcie=24, link=18),
        _gpu("RTX-6000-Ada", 49140, 48520, (8, 9), gemm=200, fp32=70, attention=160, memory=815, pcie=24, link=18),
        _gpu("A10", 23028, 22720, (8, 6), gemm=70, fp32=18, attention=60, memory=510, pcie=24, link=18),
        _gpu("A30", 24576, 24190, (8, 0), gemm=120, fp32=9, attention=95, memory=790, pcie=24, link=18),
        _gpu("A40", 46068, 45500, (8, 6), gemm=110, fp32=28, attention=90, memory=590, pcie=24, link=18),
        _gpu("L4", 23034, 22720, (8, 9), gemm=55, fp32=17, attention=50, memory=255, pcie=24, link=18),
        _gpu("L40S", 46068, 45500, (8, 9), gemm=210, fp32=65, attention=165, memory=735, pcie=24, link=18),
        _gpu("A100-40G", 40960, 40330, (8, 0), gemm=250, fp32=18, attention=190, memory=1320, pcie=24, link=240),
        _gpu("A100-80G", 81920, 81050, (8, 0), gemm=250, fp32=18, attention=190, memory=1730, pcie=24, link=240),
        _gpu("H100-80G", 81559, 81000, (9, 0), gemm=620, fp32=48, attention=315, memory=2650, pcie=55, link=350),
        _gpu("H200", 143771, 143150, (9, 0), gemm=740, fp32=50, attention=325, memory=3800, pcie=55, link=350),
        _gpu("B200", 183359, 182300, (10, 0), gemm=1500, fp32=65, attention=650, memory=6600, pcie=55, link=700),
        _gpu("MI300X", 196592, 195500, (9, 4), gemm=650, fp32=110, attention=300, memory=4100, pcie=50, link=48),
    )
}


def cpu_spec(usable_bytes: int, cores: int) -> GpuSpec:
    """One training process on the host: ``usable_bytes`` of RAM and ``cores`` cores for this process.

    Rates: fp32 of one server core with AVX-512 (products 76-97, attention 53 GFLOP/s, element-wise passes over fresh
    pages 4-20 GB/s, measured on one); PCIe and links stand for copies through shared memory.
    """
    return GpuSpec(
        name="CPU", kind="cpu", memory_bytes=usable_bytes, usable_bytes=usable_bytes, compute_capability=None,
        gemm_flops=80e9 * cores, fp32_flops=80e9 * cores, attention_flops=50e9 * cores,
        memory_bytes_per_s=6e9 * min(cores, 4), pcie_bytes_per_s=5e9, link_bytes_per_s=2e9,
    )  # fmt: skip
