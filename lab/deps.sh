#!/usr/bin/env bash
# Installs what building, testing and showing haul needs, if it is missing: a C compiler, sshd, FUSE, a Rust toolchain.
# With `release` or `build` FUSE need not work, which only tests and emulated file systems use; nor with `bench`.
# With `gluster` also GlusterFS, and what its bricks stand on; with `ceph` also Ceph, and the same.
# With `bench` also the programs that haul is measured against, the source tree that they copy, and what draws.
#
# Packages come from apt (Debian, Ubuntu), as root or with `sudo -n`. Where that is not possible, the one command that
# would help is printed and the exit code is 1: nothing is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
# Without these something is left out, and says so.
optional=()
have() { # PROGRAM
    command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]
}
need() { # PROGRAM PACKAGE
    have "$1" || missing+=("$2")
}
want() { # PROGRAM PACKAGE
    have "$1" || optional+=("$2")
}

need cc gcc
need make make
need ssh openssh-client
need ssh-keygen openssh-client
need sshd openssh-server
need sftp openssh-client
need fusermount3 fuse3
need mkfs.ext4 e2fsprogs
need mount mount
# Shares blocks between files.
need mkfs.xfs xfsprogs
# Hosts are networks of their own.
need ip iproute2
need nsenter util-linux
# The object log has a second reader.
need python3 python3
need diff diffutils
# aws-lc, the library of ciphers, is C and brings what else it needs.
[ -e /usr/include/stdio.h ] || missing+=(libc6-dev)

if [ "${1:-}" = bench ]; then
    need rsync rsync
    need scp openssh-client
    need xz xz-utils
    # Storage targets are XFS on loop devices.
    need mkfs.xfs xfsprogs
    need losetup mount
    # Pictures of the evaluation as PNG.
    need rsvg-convert librsvg2-bin
    # The raw pair says what the network and memory can do, fio what a disk can.
    want fio fio
    # Other movers. bbcp, EScp, FDT and dcp are not in Debian: they are measured where they are on the PATH.
    want globus-url-copy globus-gass-copy-progs
    want globus-gridftp-server globus-gridftp-server-progs
    want xrdcp xrootd-client
    want xrootd xrootd-server
    want rclone rclone
    # Without it a tree of the same shape is generated.
    compgen -G "/usr/src/linux-source-*.tar.xz" >/dev/null || optional+=(linux-source)
fi

if [ "${1:-}" = gluster ]; then
    need glusterd glusterfs-server
    need glusterfs glusterfs-client
    need gluster glusterfs-cli
    need getfattr attr
    need mkfs.xfs xfsprogs
fi

if [ "${1:-}" = ceph ]; then
    need ceph-mon ceph-mon
    need ceph-osd ceph-osd
    need ceph-mds ceph-mds
    need ceph-fuse ceph-fuse
    need ceph ceph-common
    need osdmaptool ceph-base
    need mkfs.xfs xfsprogs
    need getfattr attr
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then as_root=(sudo -n); else as_root=(false); fi
fi
apt_get() {
    # Another installation may be under way.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >&2
}
can_install() {
    command -v apt-get >/dev/null 2>&1 && [ "${as_root[0]:-}" != false ]
}
updated=
update() {
    [ -n "$updated" ] || apt_get update
    updated=yes
}
install() {
    update
    apt_get install -y --no-install-recommends "$@"
}

# Servers for the tests alone: the system's services must not be started because they were installed.
start_no_services() {
    policy=/usr/sbin/policy-rc.d
    # One that was killed has left it; where another one is at work, this one waits.
    for _ in $(seq 600); do
        owner=$(sed -n 's/^# of lab\/deps.sh, process \([0-9]*\)$/\1/p' "$policy" 2>/dev/null || true)
        [ -n "$owner" ] && [ -e "/proc/$owner" ] && [ "$owner" != $$ ] || break
        sleep 1
    done
    [ ! -e "$policy" ] || [ -n "$owner" ] || return 0
    "${as_root[@]}" sh -c "printf '#!/bin/sh\n# of lab/deps.sh, process $$\nexit 101\n' >$policy && chmod 755 $policy"
    trap '"${as_root[@]}" rm -f "$policy"' EXIT
}

if [ ${#missing[@]} -gt 0 ]; then
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
    if can_install; then
        start_no_services
        install "${missing[@]}"
    else
        echo "missing: ${missing[*]}; please run: sudo apt-get install ${missing[*]}" >&2
        exit 1
    fi
fi

if [ ${#optional[@]} -gt 0 ]; then
    if can_install; then
        start_no_services
        # One by one: what this system does not have must not keep the others away.
        for package in "${optional[@]}"; do
            install "$package" || echo "no $package here: it is done without" >&2
        done
    else
        echo "it is done without: ${optional[*]} (sudo apt-get install ${optional[*]})" >&2
    fi
fi

wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
at_least() { # HAVE WANT
    [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}
have_rust() {
    local have
    have=$(cargo --version 2>/dev/null | awk '{print $2}') || return 1
    [ -n "$have" ] && at_least "$have" "$wanted"
}
if ! have_rust; then
    # The system's own toolchain is taken where it is recent enough: `cargo`, or `cargo-1.NN` beside an older one.
    found=
    if can_install; then
        update
        for package in cargo $(apt-cache search --names-only '^cargo-1\.[0-9]+$' | awk '{print $1}' | sort -rV); do
            version=$(apt-cache policy "$package" | awk '/Candidate:/{print $2}')
            if [ -n "$version" ] && [ "$version" != "(none)" ] && at_least "${version%%[-+~]*}" "$wanted"; then
                found=$package
                break
            fi
        done
    fi
    if [ -n "$found" ]; then
        if [ "$found" = cargo ]; then
            install cargo rustc rustfmt rust-clippy
        else
            number=${found#cargo-}
            install "$found" "rustc-$number" "rust-$number-clippy" "rustfmt-$number" || install "$found" "rustc-$number"
            command -v cargo >/dev/null 2>&1 || "${as_root[@]}" ln -s "/usr/bin/$found" /usr/local/bin/cargo
        fi
    fi
    if ! have_rust; then
        echo "a Rust toolchain of $wanted or later is needed; please run:" >&2
        echo "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" >&2
        exit 1
    fi
fi
case "${1:-}" in release | build | bench) exit ;; esac
[ -e /dev/fuse ] || { [ "$(id -u)" != 0 ] || modprobe fuse 2>/dev/null || true; }
[ -e /dev/fuse ] || { echo "missing: /dev/fuse; please run: sudo modprobe fuse" >&2; exit 1; }
[ -w /dev/fuse ] || { echo "/dev/fuse cannot be opened; please run: sudo chmod 666 /dev/fuse" >&2; exit 1; }
