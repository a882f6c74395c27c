# Leaves of the packages in /opt/warmpath what a container loads: no tests, headers and stubs, and modules as bytecode alone.
set -eu
packages=/opt/warmpath/lib/python3.11/site-packages
python=/opt/warmpath/bin/python

# Of Envoy's 3,000 messages those that the router imports, with all that they name.
if [ -d $packages/envoy ]; then
  $python - << 'PY'
import sys
from importlib.metadata import files

from envoy.config.core.v3 import base_pb2
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2

loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
for file in files("xds-protos"):
    path = str(file.locate())
    if ".dist-info/" not in path and path not in loaded and file.locate().is_file():
        file.locate().unlink()
PY
fi

find $packages \( -type d -name tests -o -type d -name include \) -prune -exec rm -rf {} +
find $packages \( -name '*.pyi' -o -name '*.h' -o -name '*.hpp' -o -name '*.c' -o -name '*.cpp' -o -name '*.pxd' -o -name '*.pyx' \) -delete
# By name: what is bundled in folders *.libs no longer loads when it is stripped.
for name in aiohttp fastokens hiredis multidict tokenizers uvloop xxhash yaml; do
  find $packages -path "*/site-packages/$name/*.so" -exec strip --strip-unneeded {} +
done
find $packages -name __pycache__ -prune -exec rm -rf {} +
$python -m compileall -b -q --invalidation-mode unchecked-hash $packages
find $packages -name '*.py' -delete
find $packages -type d -empty -delete
find /opt/warmpath -exec touch --no-dereference --date=@$SOURCE_DATE_EPOCH {} +
