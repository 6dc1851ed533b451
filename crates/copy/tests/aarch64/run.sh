#!/bin/sh
# Builds the AArch64 kernels, runs them under an emulator, and looks for non-temporal stores and the barrier.
#
# Wants, on Debian (dpkg --add-architecture arm64): rustc libstd-rust-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross
# qemu-user-static; or a rustup toolchain with the target aarch64-unknown-linux-gnu instead of the first two.
# Exit status 77: something of that is missing, nothing was checked.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=aarch64-unknown-linux-gnu

skip() {
    echo "aarch64: skipped: $1" >&2
    exit 77
}

rustc=
for candidate in "${RUSTC:-rustc}" /usr/bin/rustc; do
    # Whether it has the target's standard library.
    if sysroot=$("$candidate" --print sysroot 2>/dev/null) && ls "$sysroot/lib/rustlib/$target/lib"/libstd-* >/dev/null 2>&1; then
        rustc=$candidate
        break
    fi
done
[ -n "$rustc" ] || skip "no rustc with the target $target (Debian: rustc, libstd-rust-dev:arm64)"
command -v aarch64-linux-gnu-gcc >/dev/null || skip "no aarch64-linux-gnu-gcc (Debian: gcc-aarch64-linux-gnu)"
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || skip "no qemu-aarch64 (Debian: qemu-user-static)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$rustc" --edition 2021 --target "$target" -C linker=aarch64-linux-gnu-gcc -C target-feature=+crt-static -O -C debug-assertions=on \
    -o "$work/check" "$here/check.rs"
"$qemu" "$work/check"

aarch64-linux-gnu-objdump -d --no-show-raw-insn "$work/check" >"$work/text"
# One function of the kernel, by the end of its path (legacy and v0 mangling both keep it readable).
body() {
    awk -v name="$1" '/^[0-9a-f]+ <.*>:$/ { on = $0 ~ "aarch64.*[0-9]" name } on' "$work/text"
}
for function in copy_stream fill_stream; do
    code=$(body "$function")
    [ -n "$code" ] || { echo "aarch64: $function is not in the program" >&2; exit 1; }
    # The last non-temporal store has a barrier after it, and the return comes later still.
    echo "$code" | awk '/\tstnp\t/ { store = NR } /\tdmb\tish/ { fence = NR }
        END { exit !(store && fence > store) }' || { echo "aarch64: $function: no stnp, or no dmb ish after it" >&2; exit 1; }
done
if body copy_cached | grep -q '	stnp	'; then
    echo "aarch64: copy_cached stores non-temporally" >&2
    exit 1
fi
echo "aarch64: stnp and dmb ish are where they belong"
