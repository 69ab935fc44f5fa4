#!/usr/bin/env bash
# Build the agent's image with docker, podman or buildah, and leave it as build/image/xpu-agent.tar.
# BASE: the base image. IMAGE: the name of the result. OUT: another folder. ENGINE: docker, podman or buildah.
# Needs `make setup`.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
BASE=${BASE:-docker.io/library/python:3.13-slim}
VERSION=$("$PYTHON" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
IMAGE=${IMAGE:-localhost/xpu-agent:$VERSION}
LIMIT_MB=${LIMIT_MB:-120}
out=${OUT:-build/image}
began=$SECONDS

engine() {  # the program that builds the image; a client without an engine does not count
  docker info >/dev/null 2>&1 && { echo docker; return; }
  podman info >/dev/null 2>&1 && { echo podman; return; }
  command -v buildah >/dev/null && { echo buildah; return; }
  echo "make image: no Docker engine, no podman, no buildah here; on Debian: apt-get install -y buildah" >&2
  return 1
}

layers() {  # how many layers an image has
  case $ENGINE in
    buildah) buildah inspect --type image --format '{{len .OCIv1.RootFS.DiffIDs}}' "$1" ;;
    *) "$ENGINE" image inspect --format '{{len .RootFS.Layers}}' "$1" ;;
  esac
}

build() {
  local arguments=(--build-arg "BASE=$BASE" --build-arg "PIP_INDEX_URL=${PIP_INDEX_URL:-}"
    -f deploy/Containerfile -t "$IMAGE" "$out/context")
  if [ "$ENGINE" = buildah ]; then buildah bud --format docker "${arguments[@]}"; else "$ENGINE" build "${arguments[@]}"; fi
}

save() {
  rm -f "$out/xpu-agent.tar"
  case $ENGINE in
    docker) docker save -o "$out/xpu-agent.tar" "$IMAGE" ;;
    podman) podman save --format docker-archive -o "$out/xpu-agent.tar" "$IMAGE" ;;
    buildah) buildah push --quiet "$IMAGE" "docker-archive:$out/xpu-agent.tar:$IMAGE" ;;
  esac
}

ENGINE=${ENGINE:-$(engine)}
if [ "$ENGINE" = buildah ]; then
  # Neither overlayfs nor namespaces are everywhere that buildah runs.
  export STORAGE_DRIVER=${STORAGE_DRIVER:-vfs} BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}
fi
rm -rf "$out/context" && mkdir -p "$out/context"
"$PYTHON" -m hatchling build -t wheel -d "$out/context" >"$out/build.log" 2>&1 || { cat "$out/build.log" >&2; exit 1; }
cp requirements/runtime.txt "$out/context/"
build >"$out/build.log" 2>&1 || { cat "$out/build.log" >&2; exit 1; }
save
"$PYTHON" deploy/imagesize.py "$out/xpu-agent.tar" --base-layers "$(layers "$BASE")" --limit "$LIMIT_MB"
echo "$out/xpu-agent.tar: $IMAGE on $BASE, by $ENGINE in $((SECONDS - began)) s"
