#!/usr/bin/env bash
# The CPU's suites on 64-bit Arm: cross-compiled here, run by user-mode qemu for every level that it emulates.
# usage: run.sh SOURCE_DIR BUILD_DIR. Exit status 77: a tool is missing (Debian: gcc-aarch64-linux-gnu, qemu-user).
set -euo pipefail
src=$1 out=$2
cc=${PACELINE_ARM_CC:-aarch64-linux-gnu-gcc} qemu=${PACELINE_ARM_QEMU:-qemu-aarch64}
for tool in "$cc" "$qemu"; do
    command -v "$tool" > /dev/null || { echo "SKIPPED: Arm kernels ($tool is not installed)"; exit 77; }
done
root=$(dirname "$("$cc" -print-file-name=libc.so.6)")/.. # where the emulator finds the system's libraries
mkdir -p "$out"
cd "$src"
flags=(-std=c17 -O2 -D_GNU_SOURCE -ffp-contract=off -fno-math-errno -Wall -Wextra -Wno-missing-field-initializers -Wno-psabi -Werror -I. -Itests/arm)
objects=()
compile() { # SOURCE [FLAGS...]
    local object=$out/${1//\//_}.o
    objects+=("$object")
    [ "$object" -nt "$1" ] && [ -z "$(find engine tests/contract tests/arm tests/unit/cpu_mm -name '*.h' -newer "$object" -print -quit)" ] && return
    "$cc" "${flags[@]}" "${@:2}" -c "$1" -o "$object"
}
for f in engine/base/{alloc,arena,buf,bytes,file,fmath,log,pool,rng,status,sys}.c engine/types/*.c engine/graph/*.c \
    engine/cpu/*.c engine/cpu/portable/*.c engine/cpu/arm/neon_{ops,mm}.c; do
    compile "$f"
done
compile engine/cpu/arm/neon_dotprod_mm.c -march=armv8.2-a+dotprod
common=("${objects[@]}")

objects=()
compile tests/contract/test_kernels.c
compile tests/arm/main.c
"$cc" -o "$out/kernels" "${common[@]}" "${objects[@]}" -lm -lpthread
objects=()
compile tests/unit/cpu_mm/test_mm.c
"$cc" -o "$out/products" "${common[@]}" "${objects[@]}" -lm -lpthread

# The emulator takes some twenty times the processor's time: a part of the passes is enough to meet every type and level.
PACELINE_CHECK_STEP=${PACELINE_CHECK_STEP:-17} "$qemu" -L "$root" -cpu max "$out/kernels"
PACELINE_CHECK_STEP=${PACELINE_CHECK_STEP:-7} "$qemu" -L "$root" -cpu max "$out/products"
