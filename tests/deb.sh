#!/usr/bin/env bash
# deb.sh TARGET: what `make deb` has left, in a fresh Debian root (DEB_SUITE, else the one of this machine) that has nothing of lowtide: installed by
# apt-get, with its pages and completions, used by root and by an ordinary user, and purged. As root; the root is in memory or on disk, and gone afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "deb.sh: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "this takes root, to make a Debian root and to enter it"
# Mounts of its own, gone with this process.
[ -n "${DEB_INSIDE:-}" ] || DEB_INSIDE=1 exec unshare --mount --propagation private "$0" "$@"

deb=$(ls -t "$1"/debian/lowtide_*_amd64.deb | head -n 1)
suite=${DEB_SUITE:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
dir=$(mktemp -d /var/tmp/lowtide-deb.XXXXXX)
trap 'exit 1' TERM INT HUP
trap 'umount -R "$dir/proc" "$dir/dev" 2>/dev/null; rm -rf --one-file-system "$dir"' EXIT
echo "$(basename "$deb") on Debian $suite"
mmdebstrap --quiet --variant=apt --include=libcap2-bin "$suite" "$dir"
cp "$deb" "$dir/tmp/lowtide.deb"
mount -t proc proc "$dir/proc"
mount --rbind /dev "$dir/dev"
inside() { chroot "$dir" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }

before=$(inside sh -c 'find / -xdev -path "*lowtide*" -not -path "/tmp/*"')
[ -z "$before" ] || fail "there before it is installed: $before"
inside apt-get install -qq --no-install-recommends /tmp/lowtide.deb >"$dir/tmp/log" 2>&1 || { cat "$dir/tmp/log" >&2; fail "it can't be installed"; }
inside lowtide --version

for file in man/man1/lowtide.1.gz man/man1/lowtide-run.1.gz man/man1/lowtide-swapoff.1.gz doc/lowtide/copyright doc/lowtide/LICENSE-APACHE \
	doc/lowtide/third-party-licences zsh/vendor-completions/_lowtide fish/vendor_completions.d/lowtide.fish \
	doc/lowtide/examples/systemd/lowtide.conf doc/lowtide/examples/container/Dockerfile; do
	[ -s "$dir/usr/share/$file" ] || fail "/usr/share/$file is not there"
done
inside bash -c '. /usr/share/bash-completion/completions/lowtide; COMP_WORDS=(lowtide swap) COMP_CWORD=1; _lowtide lowtide swap lowtide; echo "${COMPREPLY[*]}"' |
	grep -qx 'swapoff swapon\|swapon swapoff' || fail "bash does not complete \`lowtide swap\`"

# perl is in every Debian. Some 130 MiB of text that compresses as words do, and a sum over all of it.
job='my $x = 1; my @a; for my $i (0 .. 16383) { $x = ($x * 1103515245 + 12345) % 2147483648; push @a, join(",", map { $x % ($_ + 7) } 1 .. 500) x 4 }
	my $s = 0; for my $round (1 .. 2) { $s = ($s * 31 + length($_) + ord(substr($_, $round * 99, 1))) % 1000003 for @a } print "$s\n"'
native=$(inside perl -e "$job")
limited() {
	local answer out="$dir/tmp/stats.json"
	rm -f "$out"
	answer=$(inside "$@" lowtide run --quiet --ram 40M --stats /tmp/stats.json -- perl -e "$job") || fail "$*: lowtide run ended with $?"
	[ "$answer" = "$native" ] || fail "$*: $answer instead of $native"
	grep -q '"pages":[1-9]\|"pages": [1-9]' "$out" || fail "$*: nothing was evicted"
	rm -f "$out"
}
inside lowtide doctor >"$dir/tmp/doctor" || { cat "$dir/tmp/doctor" >&2; fail "doctor says that run does not work"; }
limited
echo "root: the same answer in 40 MiB"

inside useradd --create-home ordinary
chmod 1777 "$dir/tmp"
as_user=(setpriv --reuid=ordinary --regid=ordinary --clear-groups --)
! inside "${as_user[@]}" lowtide run --ram 40M -- true 2>"$dir/tmp/refusal" || fail "an ordinary user has privileges"
grep -q CAP_SYS_PTRACE "$dir/tmp/refusal" || fail "the refusal does not name what is missing: $(cat "$dir/tmp/refusal")"
# As the README says.
inside setcap cap_sys_ptrace,cap_dac_read_search=p /usr/bin/lowtide
limited "${as_user[@]}"
echo "an ordinary user, after setcap: the same answer in 40 MiB"

inside apt-get purge -qq lowtide >"$dir/tmp/log" 2>&1 || { cat "$dir/tmp/log" >&2; fail "it can't be purged"; }
left=$(inside sh -c 'find / -xdev -path "*lowtide*" -not -path "/tmp/*" -not -path "/var/lib/apt/*" -not -path "/proc/*"')
[ -z "$left" ] || fail "left when it was purged: $left"
echo "purged: nothing left"
