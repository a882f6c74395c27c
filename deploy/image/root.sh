# Makes in /root-of-image all that a container has beside /opt/warmpath: Python, the shared libraries that it and the packages
# load, certificates and time zones. No shell, no apt. Tools that look for vulnerable packages read var/lib/dpkg/status.d.
# Usage: sh root.sh LIBRARY..., of which each is loaded by its name.
set -eu
root=/root-of-image
mkdir -p $root/etc $root/usr/lib $root/usr/local/bin $root/usr/local/lib $root/usr/share $root/var/lib/dpkg/status.d
mkdir -m 1777 $root/tmp
for name in lib lib64; do ln -s usr/$name $root/$name; done

cp -P /usr/local/bin/python* $root/usr/local/bin
cp -P /usr/local/lib/libpython3* $root/usr/local/lib
cp -R /usr/local/lib/python3.11 $root/usr/local/lib
standard=$root/usr/local/lib/python3.11
cd $standard
rm -rf site-packages ensurepip idlelib lib2to3 pydoc_data test tkinter turtledemo config-3.11-* lib-dynload/_tkinter* lib-dynload/_test* lib-dynload/_ctypes_test*
mkdir site-packages
find . -name __pycache__ -prune -exec rm -rf {} +
/usr/local/bin/python -m compileall -b -q --invalidation-mode unchecked-hash .
find . -name '*.py' -delete
find $root/usr/local -name '*.so*' -type f -exec strip --strip-unneeded {} +

{
  find /usr/local/bin/python3.11 $standard /opt/warmpath -type f \( -name '*.so' -o -name '*.so.*' -o -name python3.11 \) -exec ldd {} + 2> /dev/null |
    awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\// && NF == 2 && $2 ~ /^\(/ { print $1 }'
  for name in libgcc_s.so.1 libnss_dns.so.2 libnss_files.so.2 libresolv.so.2 "$@"; do
    ldconfig -p | awk -v name="$name" '$1 == name { print $NF; exit }'
  done
} | grep -Ev '^/(opt|usr/local)/' | sort -u > /libraries
while read -r library; do
  case $library in /usr/*) to=$library ;; *) to=/usr$library ;; esac
  mkdir -p "$root${to%/*}"
  cp -L "$library" "$root$to"
  real=$(readlink -f "$library")
  dpkg -S "$real" "${real#/usr}" "$library" 2> /dev/null | cut -d: -f1 | sort -u
done < /libraries | sort -u | while read -r package; do
  dpkg-query -s "$package" > "$root/var/lib/dpkg/status.d/$package"
done

cp -RL /etc/ssl $root/etc
[ ! -d /usr/lib/ssl ] || cp -R /usr/lib/ssl $root/usr/lib
[ ! -d /usr/share/zoneinfo ] || cp -R /usr/share/zoneinfo $root/usr/share
cp -L /etc/os-release /etc/debian_version $root/etc
[ ! -e /etc/nsswitch.conf ] || cp /etc/nsswitch.conf $root/etc
cp -R /etc/ld.so.conf /etc/ld.so.conf.d $root/etc
ldconfig -r $root
printf '%s\n' 'root:x:0:0::/:/nologin' 'warmpath:x:65532:65532::/:/nologin' > $root/etc/passwd
printf '%s\n' 'root:x:0:' 'warmpath:x:65532:' > $root/etc/group
find $root -exec touch --no-dereference --date=@$SOURCE_DATE_EPOCH {} +
