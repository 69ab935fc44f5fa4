#!/usr/bin/env bash
# Builds what a real node needs besides tests/peers/build.sh: containerd and its shim, the loopback network,
# helm, runc, an image that holds pods, and the agent's image on a base of our own. What is up to date is kept.
# With `foreign` only what comes from elsewhere: Debian's packages, and the base image that is made of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=build/realnode-images
CONTAINERD=v2.4.2
PLUGINS=v1.9.1
BASE=localhost/xpu-base:test
export STORAGE_DRIVER=${STORAGE_DRIVER:-vfs} BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}

say() { echo "real node: $*"; }

part() {  # part WHAT COMMAND...: run it, say how long it took
  local what=$1 began=$SECONDS
  shift
  "$@"
  say "$what: $((SECONDS - began)) s"
}

packages() {  # what Debian has, as far as it is missing
  local missing=()
  command -v runc >/dev/null || missing+=(runc)
  command -v buildah >/dev/null || missing+=(buildah)
  command -v debootstrap >/dev/null || missing+=(debootstrap)
  command -v cc >/dev/null || missing+=(gcc libc6-dev)
  for it in openssl:openssl unshare:util-linux setpriv:util-linux nsenter:util-linux pgrep:procps; do
    command -v "${it%:*}" >/dev/null || missing+=("${it#*:}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "a real node needs ${missing[*]}: install them" >&2
    return 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

programs() {  # go install into build/tools, once per version
  local stamp="$CONTAINERD $PLUGINS $(cd / && go env GOVERSION)"
  [ "$(cat build/tools/realnode.stamp 2>/dev/null)" != "$stamp" ] || return 0
  export GOBIN=$PWD/build/tools CGO_ENABLED=0 GOTOOLCHAIN=local
  go install github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr}@$CONTAINERD
  go install github.com/containernetworking/plugins/plugins/{main/loopback,main/tap,ipam/host-local}@$PLUGINS
  echo "$stamp" >build/tools/realnode.stamp
}

pause_image() {
  local source=tests/realnode/pause.c container
  [ "$out/pause.tar" -nt "$source" ] && return
  cc -O1 -static -o "$out/pause" "$source"
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$out/pause" /pause >/dev/null
  buildah config --entrypoint '["/pause"]' --cmd '' "$container"
  buildah commit --quiet "$container" localhost/pause:latest >/dev/null
  buildah rm "$container" >/dev/null
  rm -f "$out/pause.tar"
  buildah push --quiet localhost/pause:latest "docker-archive:$out/pause.tar:localhost/pause:latest"
}

sources() {  # a sum over all that the agent's image is made of
  find agent requirements/runtime.txt deploy/Containerfile deploy/image.sh pyproject.toml tests/realnode/base.sh \
    -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum | sha256sum
}

id_of() {  # of an image; nothing where there is none
  buildah inspect --type image --format '{{.FromImageID}}' "$1" 2>/dev/null || true
}

agent_image() {
  local stamp image before
  stamp=$(sources)
  [ -e "$out/xpu-agent.tar" ] && [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ] && return
  tests/realnode/base.sh "$BASE"
  image=localhost/xpu-agent:$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
  before=$(id_of "$image")
  # By whom the base was made, also where there is an engine.
  ENGINE=buildah PYTHON=.venv/bin/python OUT=$out BASE=$BASE IMAGE=$image deploy/image.sh
  if [ -n "$before" ] && [ "$before" != "$(id_of "$image")" ]; then
    buildah rmi "$before" >/dev/null || true  # it has no name any more
  fi
  echo "$stamp" >"$out/stamp"
}

kubectl() {  # the cluster's binary by the name that it takes for a command
  local built
  built=$(find build/peers/ -name 'cluster-*' ! -name '*.stamp' ! -name '*.new' | sort | tail -n 1)
  ln -sf "../peers/${built##*/}" build/tools/kubectl
}

all() {
  part "Kubernetes" tests/peers/build.sh cluster  # says, too, what it lacks of Go
  part "containerd" programs
  part "helm" make --no-print-directory --silent tools
  part "kubectl" kubectl
  part "pause image" pause_image
  part "the agent's image" agent_image
}

mkdir -p "$out" build/tools
exec 9>build/realnode-images.lock
flock 9  # another one builds
part "packages" packages
part "base image" tests/realnode/base.sh "$BASE"
case ${1:-all} in
  all) all ;;
  foreign) ;;
  *) echo "build.sh: there is no $1 to build, only: foreign" >&2; exit 2 ;;
esac
