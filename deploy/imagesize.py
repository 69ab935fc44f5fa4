"""What an image adds to its base: the files of the layers above it, in MB. Exit 1 where it is too much."""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
from pathlib import Path


def added(archive: Path, base_layers: int) -> int:
    """Bytes of the files in the layers of a docker-archive that stand above the base's.

    Layers may be compressed, as some engines save them; what counts is what lies on the node's disk.
    """
    with tarfile.open(archive) as image:
        manifest = image.extractfile("manifest.json")
        if manifest is None:
            raise ValueError(f"{archive}: no manifest.json; it is no docker-archive")
        [one] = json.load(manifest)
        return sum(_bytes(image, name) for name in one["Layers"][base_layers:])


def _bytes(image: tarfile.TarFile, name: str) -> int:
    with tarfile.open(fileobj=image.extractfile(name), mode="r|*") as layer:
        return sum(member.size for member in layer)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--base-layers", type=int, required=True, help="layers of the base image")
    parser.add_argument("--limit", type=float, required=True, help="MB")
    args = parser.parse_args()
    found = added(args.archive, args.base_layers) / 1e6
    sys.stdout.write(f"{found:.1f} MB on top of the base, limit {args.limit:g} MB\n")
    return int(found > args.limit)


if __name__ == "__main__":
    sys.exit(main())
