"""Main memory of cloud instances, for jobs that keep weights or optimizer states on the host.

A machine that is not here has its memory declared: `host-memory` in the settings, `hardware.host_memory` in a native
job file.
"""

from __future__ import annotations

from memlint.hardware.names import key
from memlint.units import GIB

_AWS: dict[int, str] = {
    16: "g4dn.xlarge g5.xlarge g6.xlarge",
    32: "g4dn.2xlarge g5.2xlarge g6.2xlarge g6e.xlarge",
    64: "g4dn.4xlarge g5.4xlarge g6.4xlarge g6e.2xlarge g7e.2xlarge",
    128: "g5.8xlarge g6.8xlarge g6e.4xlarge gr6.4xlarge g7e.4xlarge",
    192: "g4dn.12xlarge g5.12xlarge g6.12xlarge",
    256: "g5.16xlarge g6.16xlarge g6e.8xlarge gr6.8xlarge g7e.8xlarge p5.4xlarge",
    384: "g4dn.metal g5.24xlarge g6.24xlarge g6e.12xlarge",
    512: "g6e.16xlarge g7e.12xlarge",
    768: "g5.48xlarge g6.48xlarge g6e.24xlarge",
    960: "p6e-gb200.36xlarge",
    1024: "g7e.24xlarge",
    1152: "p4d.24xlarge p4de.24xlarge",
    1536: "g6e.48xlarge",
    2048: "g7e.48xlarge p5.48xlarge p5e.48xlarge p5en.48xlarge p6-b200.48xlarge",
    4096: "p6-b300.48xlarge",
}
"""Amazon EC2 instance type guide, "Accelerated computing", table of performance specifications, column Memory (GiB)."""

_AWS_EARLIER: dict[int, str] = {61: "p3.2xlarge", 244: "p3.8xlarge", 488: "p3.16xlarge", 768: "p3dn.24xlarge"}
"""Amazon EC2 P3 instances, product page, column Mem (GiB); no longer in the guide's table."""

_GOOGLE: dict[int, str] = {
    16: "g2-standard-4",
    85: "a2-highgpu-1g",
    170: "a2-highgpu-2g a2-ultragpu-1g",
    234: "a3-highgpu-1g",
    340: "a2-highgpu-4g a2-ultragpu-2g",
    384: "g2-standard-96",
    468: "a3-highgpu-2g",
    680: "a2-highgpu-8g a2-ultragpu-4g",
    936: "a3-highgpu-4g",
    1360: "a2-megagpu-16g a2-ultragpu-8g",
    1872: "a3-highgpu-8g a3-megagpu-8g",
    2952: "a3-ultragpu-8g",
}
"""Google Compute Engine, "Accelerator-optimized machine family", column Instance memory (GB); machine types count it in
units of 2^30 bytes (memoryMb of the API is 1024 times it). The A4's was not to be found a second time, so it is out."""

_AZURE: dict[int, str] = {
    28: "Standard_NC4as_T4_v3",
    56: "Standard_NC8as_T4_v3",
    100: "Standard_NC8ads_A10_v4",
    110: "Standard_NC16as_T4_v3",
    112: "Standard_NC6s_v3",
    200: "Standard_NC16ads_A10_v4",
    220: "Standard_NC24ads_A100_v4",
    224: "Standard_NC12s_v3",
    320: "Standard_NC40ads_H100_v5",
    400: "Standard_NC32ads_A10_v4",
    440: "Standard_NC48ads_A100_v4 Standard_NC64as_T4_v3 Standard_NV36ads_A10_v5",
    448: "Standard_NC24s_v3",
    640: "Standard_NC80adis_H100_v5",
    672: "Standard_ND40rs_v2",
    880: "Standard_NC96ads_A100_v4 Standard_NV36adms_A10_v5 Standard_NV72ads_A10_v5",
    900: "Standard_ND96asr_v4",
    1800: "Standard_ND96amsr_A100_v4",
    1850: "Standard_ND96isr_H200_v5 Standard_ND96isr_MI300X_v5",
    1900: "Standard_ND96isr_H100_v5",
}
"""Azure's resource SKU API (MemoryGB), as generated into microsoft/aspire AksNodeVmSizes.cs 13.3; the size pages agree,
but for 1,900 GiB of the NDm A100 v4, of which the API gives a machine 1,800."""

_SPACES: dict[int, str] = {
    15: "t4-small a10g-small",
    30: "t4-medium l4x1",
    46: "a10g-large",
    62: "l40sx1",
    92: "a10g-largex2",
    142: "a100-large",
    184: "a10g-largex4",
    186: "l4x4",
    382: "l40sx4",
    1534: "l40sx8",
}
"""huggingface.co/docs/hub/spaces-gpus, column Memory (GB): the instance's GiB (g5.xlarge's 16) less what the host
keeps."""

_GIB = (_AWS, _AWS_EARLIER, _GOOGLE, _AZURE, _SPACES)
"""GiB of one instance -> its names, by provider."""


def host_bytes_of(instance: str) -> int | None:
    """Return the main memory of a cloud instance; None where it is not known."""
    wanted = key(instance)
    for provider in _GIB:
        for size, names in provider.items():
            if wanted in [key(name) for name in names.split()]:
                return size * GIB
    return None
