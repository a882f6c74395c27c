# Installs the wheel beside the packages, and leaves its files in /own at their places, with what was compiled ahead.
set -eu
python -m pip --python /opt/warmpath/bin/python install --no-compile --no-deps /wheel/*.whl
find /opt/warmpath/lib/python3.11/site-packages/warmpath* -name '*.pyi' -delete
find /opt/warmpath -exec touch --no-dereference --date=@$SOURCE_DATE_EPOCH {} +
/opt/warmpath/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/warmpath/lib/python3.11/site-packages/warmpath
mkdir /own
cd /
cp -a --parents opt/warmpath/bin/warmpath opt/warmpath/lib/python3.11/site-packages/warmpath* /own
