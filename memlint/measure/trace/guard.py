"""A do-nothing CUDA device, so that autograd runs over fake CUDA tensors on a machine without a GPU.

PyTorch offers no way to register a device guard from Python for CUDA, so a few lines of C++ (``guard.cpp``) are
compiled once per PyTorch build into the user's cache directory. With a real GPU nothing is installed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache

import torch

from memlint.errors import UserError


@cache
def install_idle_cuda() -> None:
    """Give autograd a CUDA device to talk to. Does nothing where a real one is present.

    Raises UserError when no C++ compiler is found or PyTorch's headers do not fit it.
    """
    if torch.cuda.is_available():
        return
    ctypes.CDLL(_library(), mode=ctypes.RTLD_GLOBAL)


def _library() -> str:
    source = os.path.join(os.path.dirname(__file__), "guard.cpp")
    with open(source, "rb") as stream:
        text = stream.read()
    key = hashlib.sha256(text + f"{torch.__version__}{torch.__file__}{sys.platform}".encode()).hexdigest()[:16]
    folder = os.environ.get("MEMLINT_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "memlint"
    )
    target = os.path.join(folder, f"idle-cuda-{key}.so")
    if os.path.exists(target):
        return target
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if compiler is None:
        raise UserError(
            "memlint trace needs a C++ compiler once, to give PyTorch an idle CUDA device on a machine without a GPU: "
            "install g++, or set CXX"
        )
    os.makedirs(folder, exist_ok=True)
    root = os.path.dirname(torch.__file__)
    temporary = f"{target}.{os.getpid()}"
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    command = [compiler, "-std=c++20", "-O0", "-fPIC", "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    command += [f"-I{root}/include", source, "-o", temporary, f"-L{root}/lib", "-lc10", "-ltorch_cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-300:])
        raise UserError(f"memlint trace could not compile {source} with {compiler}: {last}")
    os.replace(temporary, target)
    return target
