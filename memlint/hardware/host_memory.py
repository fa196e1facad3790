"""Main memory of cloud instances, for jobs that keep weights or optimizer states on the host.

Sources: AWS, "Amazon EC2 accelerated computing instances" and the Batch user guide's page on GPU jobs; Google Compute
Engine, "Accelerator-optimized machine family"; Azure, the size pages of the NC and ND series. A machine that is not
here has its memory declared: `host-memory` in the settings, `hardware.host_memory` in a native job file.
"""

from __future__ import annotations

from memlint.hardware.names import key
from memlint.units import GIB

_GIB: dict[int, str] = {
    16: "g4dn.xlarge g5.xlarge g6.xlarge g2-standard-4",
    28: "Standard_NC4as_T4_v3",
    32: "g4dn.2xlarge g5.2xlarge g6.2xlarge g6e.xlarge",
    56: "Standard_NC8as_T4_v3",
    61: "p3.2xlarge",
    64: "g4dn.4xlarge g5.4xlarge g6.4xlarge g6e.2xlarge",
    85: "a2-highgpu-1g",
    110: "Standard_NC16as_T4_v3",
    112: "Standard_NC6s_v3",
    128: "g5.8xlarge g6.8xlarge g6e.4xlarge gr6.4xlarge",
    170: "a2-highgpu-2g a2-ultragpu-1g",
    192: "g4dn.12xlarge g5.12xlarge g6.12xlarge",
    220: "Standard_NC24ads_A100_v4",
    224: "Standard_NC12s_v3",
    244: "p3.8xlarge",
    256: "g5.16xlarge g6.16xlarge g6e.8xlarge gr6.8xlarge p5.4xlarge",
    320: "Standard_NC40ads_H100_v5",
    384: "g4dn.metal g5.24xlarge g6.24xlarge g6e.12xlarge g2-standard-96",
    440: "Standard_NC48ads_A100_v4 Standard_NC64as_T4_v3",
    448: "Standard_NC24s_v3",
    488: "p3.16xlarge",
    512: "g6e.16xlarge",
    640: "Standard_NC80adis_H100_v5",
    672: "Standard_ND40rs_v2",
    680: "a2-highgpu-8g",
    768: "g5.48xlarge g6.48xlarge g6e.24xlarge p3dn.24xlarge",
    880: "Standard_NC96ads_A100_v4",
    900: "Standard_ND96asr_v4",
    936: "a3-highgpu-4g",
    1152: "p4d.24xlarge p4de.24xlarge",
    1360: "a2-ultragpu-8g",
    1536: "g6e.48xlarge",
    1872: "a3-highgpu-8g a3-megagpu-8g",
    1900: "Standard_ND96amsr_A100_v4 Standard_ND96isr_H100_v5",
    2048: "p5.48xlarge p5e.48xlarge p5en.48xlarge",
}
"""GiB of one instance -> its names. Google's page says GB; Compute Engine counts these in units of 2^30 bytes."""


def host_bytes_of(instance: str) -> int | None:
    """Return the main memory of a cloud instance; None where it is not known."""
    wanted = key(instance)
    for size, names in _GIB.items():
        if wanted in [key(name) for name in names.split()]:
            return size * GIB
    return None
