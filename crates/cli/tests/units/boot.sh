#!/bin/bash
# boot.sh ROOM CHECKOUT PROGRAM
#
# Boots the systemd of this machine in namespaces of its own, over a copy of / that is thrown away: what is changed there
# stays in ROOM's tmpfs, and the kernel's settings cannot be written. CHECKOUT is its /checkout, PROGRAM its
# /usr/local/bin/onecopy. Says `process N` (systemd's, to enter by nsenter) once it runs, or `lacking: WHAT`, and ends it when
# standard input ends, with whoever holds that.
set -euo pipefail

# In a mount namespace of its own: a cgroup to be systemd's root.
outside() {
    local room=$1 cgroups=$1/cgroups child inner
    mkdir "$cgroups" "$room/top"
    mount -t cgroup2 cgroup2 "$cgroups"
    cgroup=$cgroups/onecopy-units-$$
    mkdir "$cgroup"
    trap 'end' EXIT
    (
        # A number cannot be said here: a subshell has that of the shell.
        echo "$BASHPID" >"$cgroup/cgroup.procs"
        exec unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup \
            bash "$0" inside "$@" </dev/null >"$room/said" 2>&1
    ) &
    child=$!
    until [[ -e $room/booted ]]; do
        if ! kill -0 "$child" 2>/dev/null; then
            if [[ -e $room/no-overlay ]]; then
                echo "lacking: an overlay of /, for a systemd that changes nothing here"
            fi
            exit
        fi
        sleep 0.05
    done
    inner=$(cat "/proc/$child/task/$child/children")
    echo "process ${inner% }"
    exec 1>&-
    cat >/dev/null
    # (bash would say that it was killed.)
    { kill -KILL "$child" && wait "$child"; } 2>/dev/null || true
}

end() {
    local left
    wait || true
    # Nobody is in there any more, but the kernel may take a moment to see it.
    for left in {1..100}; do
        find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null && break
        sleep 0.05
    done
}

# As process 1 of its namespaces.
inside() {
    local top=$1/top checkout=$2 program=$3 device kernels new unit
    new=$top/root
    mount -t tmpfs -o size=256M room "$top"
    mkdir "$top/upper" "$top/work" "$new"
    if ! mount -t overlay -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" overlay "$new"; then
        touch "$1/no-overlay"
        exit 1
    fi
    mount -t proc proc "$new/proc"
    # What is no namespace's is this machine's: systemd-sysctl would write it.
    for kernels in sys sysrq-trigger; do
        [[ -e $new/proc/$kernels ]] || continue
        mount --bind "$new/proc/$kernels" "$new/proc/$kernels"
        mount -o remount,bind,ro "$new/proc/$kernels"
    done
    mount -t sysfs -o ro sysfs "$new/sys"
    mount -t cgroup2 cgroup2 "$new/sys/fs/cgroup"
    mount -t tmpfs -o mode=755 dev "$new/dev"
    for device in null zero full random urandom tty; do
        touch "$new/dev/$device"
        mount --bind "/dev/$device" "$new/dev/$device"
    done
    ln -s /proc/self/fd "$new/dev/fd"
    mkdir "$new/dev/shm" "$new/dev/pts" "$new/dev/mqueue" "$new/dev/hugepages"
    mount -t tmpfs shm "$new/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$new/dev/pts"
    ln -s pts/ptmx "$new/dev/ptmx"
    mount -t tmpfs -o mode=755 run "$new/run"
    mount -t tmpfs -o mode=1777 tmp "$new/tmp"
    mkdir -p "$new/checkout" "$new/old"
    mount --bind -o ro "$checkout" "$new/checkout"
    touch "$new/usr/local/bin/onecopy"
    mount --bind "$program" "$new/usr/local/bin/onecopy"
    # Nothing of this machine's own is started, and nothing set or loaded.
    for unit in timers.target getty.target local-fs.target swap.target systemd-sysctl.service systemd-modules-load.service; do
        ln -sf /dev/null "$new/etc/systemd/system/$unit"
    done
    ip link set lo up
    touch "$1/booted"
    cd "$new"
    pivot_root . old
    umount --lazy /old
    exec setpriv --bounding-set -sys_module,-sys_rawio,-sys_time,-sys_boot \
        env --ignore-environment container=onecopy PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --system --unit=basic.target --log-target=journal --show-status=no
}

if [[ $1 == inside ]]; then
    shift
    inside "$@"
elif [[ $1 == outside ]]; then
    shift
    outside "$@"
else
    exec unshare --mount --propagation private bash "$0" outside "$@"
fi
