# First process of a machine: puts a root of its own over another, and becomes systemd. $1: its name; $2: that root.
#
# All that is written lies in memory and ends with the mount namespace. Settings of the whole kernel
# stay read-only, and of systemd's units only the journal is started.
set -e
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t tmpfs -o mode=755 humanz-machine /tmp
cd /tmp
mkdir upper work root
mount -t overlay -o "lowerdir=$2,upperdir=/tmp/upper,workdir=/tmp/work" overlay root
cd root
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount --bind proc/sys/net proc/sys/net
mount -o remount,ro,bind proc/sys
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do
    : >dev/$name
    mount --bind /dev/$name dev/$name
done
mkdir dev/pts dev/shm run/netns
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount --bind run/netns run/netns
mount --make-shared run/netns

# Nobody reads manual pages there.
rm -f var/lib/man-db/auto-update

units=usr/lib/systemd/system
rm -rf etc/systemd/system/*.wants $units/*.wants
rm -rf etc/fstab etc/cni etc/humanz opt/cni var/lib/humanz var/log/humanz.log usr/sbin/policy-rc.d
mkdir $units/sysinit.target.wants $units/sockets.target.wants
ln -s ../systemd-journald.service $units/sysinit.target.wants
ln -s ../systemd-journald.socket ../systemd-journald-dev-log.socket $units/sockets.target.wants
echo 00112233445566778899aabbccddeeff >etc/machine-id
echo "$1" >etc/hostname
hostname "$1"

pivot_root . mnt
umount -l /mnt
ip link set lo up
echo ready
exec </dev/null >/run/boot.log 2>&1
exec env -i container=humanz-test "PATH=$PATH" \
    /lib/systemd/systemd --system --log-target=journal --unit=multi-user.target
