#!/usr/bin/env bash
# Installs what the build, the tests and the demo need beside Rust; `deps.sh bench` also what the benchmarks compare with.
# Only what is missing, only with the system's packages. Where that is not possible it prints the one command that is.
set -euo pipefail

missing=()
need() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || missing+=("$2"); }
need cc gcc
need make make
need ssh openssh-client
need sshd openssh-server
need fusermount3 fuse3
[ "${1:-}" = bench ] && need rsync rsync
if ! command -v cargo >/dev/null 2>&1 && [ ! -x "$HOME/.cargo/bin/cargo" ]; then
    missing+=(cargo rustc)
fi

if [ ${#missing[@]} -gt 0 ]; then
    command="apt-get install -y --no-install-recommends ${missing[*]}"
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "missing: ${missing[*]}; install them with your system's packages" >&2
        exit 1
    elif [ "$(id -u)" = 0 ]; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive $command >/dev/null
    elif sudo -n true 2>/dev/null; then
        sudo apt-get update -qq
        sudo DEBIAN_FRONTEND=noninteractive $command >/dev/null
    else
        echo "missing: ${missing[*]}; run: sudo $command" >&2
        exit 1
    fi
fi

# The toolchain must be recent enough for the workspace.
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
found=$(cargo --version | cut -d' ' -f2)
if [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -1)" != "$wanted" ]; then
    echo "Rust $found is older than $wanted; run: rustup update stable" >&2
    exit 1
fi
