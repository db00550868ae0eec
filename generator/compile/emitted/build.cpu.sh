#!/bin/sh
# Compiles every kernel to a shared library, then the check, which runs them on their examples. Needs a C++17 compiler
# with OpenMP. CXX names another compiler; TUNING another processor than this one.
set -eu
cd "$(dirname "$0")"
CXX=${CXX:-g++}
case "$(uname -m)" in aarch64) NATIVE=-mcpu=native ;; *) NATIVE=-march=native ;; esac
TUNING=${TUNING:-$NATIVE}
mkdir -p build
libraries=""
for name in @NAMES@; do
  "$CXX" @OPTIONS@ $TUNING -fvisibility=hidden "kernels/$name/launch.cpp" -o "build/lib$name.so"
  libraries="$libraries -l$name"
done
"$CXX" -std=c++17 -O1 check.cpp -o build/check -Lbuild $libraries '-Wl,-rpath,$ORIGIN'
./build/check
