"""DeepSpeed's own ZeRO engine, run on the CPU and counted, beside what memlint says of the same job."""
