#!/usr/bin/env bash
# Builds the test peers into build/peers at the repository root. With names it builds only those:
#   peers    the kubelet's device manager and what measures, one binary per Kubernetes release
#   cluster  API server with etcd, controllers, scheduler, kubelet and kubectl of the newer release, one binary
# The cluster is a Go module of its own: what it needs besides changes no version and no stamp of the others,
# which are needed more often and built sooner. Its versions are theirs, so what both need is compiled once.
set -eu
shopt -s nullglob

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(cd "$here/../.." && pwd)/build/peers
export CGO_ENABLED=0 GOTOOLCHAIN=local

if ! command -v go >/dev/null; then
  echo "the test peers need Go 1.26 or newer, and there is no 'go' on PATH: install Go" >&2
  exit 1
fi
found=$(cd / && go env GOVERSION)
if [ "$(printf '%s\n' go1.26 "$found" | sort -V | head -n 1)" != go1.26 ]; then
  echo "the test peers need Go 1.26 or newer, and 'go' is $found: install a newer Go" >&2
  exit 1
fi

release() { sed -n 's|^[[:space:]]*k8s.io/kubernetes v||p' "$1"; }

build() {  # build NAME MODFILE OPTION...: the package in the working directory, unless it is built
  local name=$1 modfile=$2 stamp
  shift 2
  stamp=$(cat "$modfile" "${modfile%.mod}.sum" ./*.go ./*.s | sha256sum)" $found"
  if [ -x "$out/$name" ] && [ "$(cat "$out/$name.stamp" 2>/dev/null)" = "$stamp" ]; then
    echo "$name: up to date"
    return
  fi
  SECONDS=0
  # Beside the target and moved over it: a build that is cut short leaves nothing that looks built.
  go build -modfile="$modfile" -buildvcs=false "$@" -o "$out/$name.new" .
  mv "$out/$name.new" "$out/$name"
  echo "$stamp" >"$out/$name.stamp"
  echo "$name: built in $SECONDS s"
}

copy_cdi_schema() {  # copy_cdi_schema MODFILE: up to 0.8 the CDI library comes with the JSON schema of its specs
  local schema
  [ "$out/cdi-schema/schema.json" -nt "$1" ] && return
  schema=$(go list -modfile="$1" -m -f '{{.Dir}}' tags.cncf.io/container-device-interface)/schema
  mkdir -p "$out/cdi-schema"
  install -m 644 "$schema"/{schema,defs}.json "$out/cdi-schema"
}

build_peers() {
  cd "$here"
  build "peer-$(release go.mod)" go.mod
  build "peer-$(release go.old.mod)" go.old.mod -tags=old
  copy_cdi_schema go.old.mod
}

build_cluster() {
  cd "$here/cluster"
  local version variable=k8s.io/component-base/version
  version=$(release go.mod)
  # The released version, which nodes and charts show and compare; without debugging symbols, which nobody reads.
  build "cluster-$version" go.mod -ldflags="-s -w -X $variable.gitVersion=v$version \
    -X $variable.gitMajor=$(cut -d. -f1 <<<"$version") -X $variable.gitMinor=$(cut -d. -f2 <<<"$version")"
}

mkdir -p "$out"
[ $# -gt 0 ] || set -- peers cluster
for part in "$@"; do
  case $part in
    peers | cluster) "build_$part" ;;
    *) echo "build.sh: there is no $part to build, only: peers, cluster" >&2; exit 2 ;;
  esac
done
