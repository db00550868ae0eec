#!/bin/sh
# Compiles every kernel to a shared library, then the check, which runs them on their examples. Needs nvcc from CUDA 12
# or newer and, for the check to run, a GPU. NVCC names another compiler, ARCH another architecture.
set -eu
cd "$(dirname "$0")"
NVCC=${NVCC:-nvcc}
ARCH=${ARCH:-@ARCH@}
mkdir -p build
libraries=""
for name in @NAMES@; do
  "$NVCC" -std=c++17 -O3 "-arch=$ARCH" -shared -Xcompiler -fPIC,-fvisibility=hidden \
    "kernels/$name/launch.cu" -o "build/lib$name.so"
  libraries="$libraries -l$name"
done
"$NVCC" -std=c++17 "-arch=$ARCH" check.cu -o build/check -Lbuild $libraries -Xlinker '-rpath=$ORIGIN'
./build/check
