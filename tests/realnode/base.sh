#!/usr/bin/env bash
# A base image without a registry: Debian by debootstrap, with Python. For tests; needs root, buildah, debootstrap.
# Usage: base.sh [NAME]   (default localhost/xpu-base:test; one that is there is kept)
set -euo pipefail
export STORAGE_DRIVER=${STORAGE_DRIVER:-vfs} BUILDAH_ISOLATION=chroot
name=${1:-localhost/xpu-base:test}
buildah inspect --type image "$name" >/dev/null 2>&1 && { echo "$name is there"; exit; }
for tool in buildah debootstrap; do
  command -v "$tool" >/dev/null || { echo "base.sh: no $tool; apt-get install -y buildah debootstrap" >&2; exit 1; }
done
root=$(mktemp -d)
container=
trap '[ -z "$container" ] || buildah rm "$container" >/dev/null; rm -rf "$root"' EXIT

began=$SECONDS
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" >/dev/null
# A machine behind a proxy of its own trusts what the proxy signs; the build has to trust it as well.
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/*
container=$(buildah from scratch)
buildah add --quiet "$container" "$root" / >/dev/null
buildah config --cmd python3 "$container"
buildah commit --quiet "$container" "$name" >/dev/null
echo "$name: made in $((SECONDS - began)) s"
