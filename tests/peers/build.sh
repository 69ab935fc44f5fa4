#!/usr/bin/env bash
# Builds the kubelet test peers, one per Kubernetes release, into build/peers at the repository root.
set -eu

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(cd "$here/../.." && pwd)/build/peers
export CGO_ENABLED=0 GOTOOLCHAIN=local

if ! command -v go >/dev/null; then
  echo "the kubelet peers need Go 1.26 or newer, and there is no 'go' on PATH: install Go" >&2
  exit 1
fi
found=$(cd / && go env GOVERSION)
if [ "$(printf '%s\n' go1.26 "$found" | sort -V | head -n 1)" != go1.26 ]; then
  echo "the kubelet peers need Go 1.26 or newer, and 'go' is $found: install a newer Go" >&2
  exit 1
fi

cd "$here"
mkdir -p "$out"
for modfile in go.mod go.old.mod; do
  version=$(sed -n 's|^[[:space:]]*k8s.io/kubernetes v||p' "$modfile")
  tags=''
  if [ "$modfile" = go.old.mod ]; then tags=old; fi
  binary=$out/peer-$version
  stamp=$(cat "$modfile" "${modfile%.mod}.sum" ./*.go ./*.s | sha256sum)" $found"
  if [ -x "$binary" ] && [ "$(cat "$binary.stamp" 2>/dev/null)" = "$stamp" ]; then
    echo "peer-$version: up to date"
    continue
  fi
  SECONDS=0
  # Beside the target and moved over it: a build that is cut short leaves nothing that looks built.
  go build -modfile="$modfile" -tags="$tags" -buildvcs=false -o "$binary.new" .
  mv "$binary.new" "$binary"
  # Up to 0.8 the CDI library comes with the JSON schema of its specs.
  schema=$(go list -modfile="$modfile" -m -f '{{.Dir}}' tags.cncf.io/container-device-interface)/schema
  if [ -d "$schema" ]; then
    mkdir -p "$out/cdi-schema"
    install -m 644 "$schema"/{schema,defs}.json "$out/cdi-schema"
  fi
  echo "$stamp" >"$binary.stamp"
  echo "peer-$version: built in $SECONDS s"
done
