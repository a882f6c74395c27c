# Ends an Envoy in order, as its container's preStop: new requests go elsewhere, those under way end, for SECONDS at most.
# The image has no curl. Usage: bash drain.sh PORT SECONDS PAUSE
admin() {
  exec 3<>"/dev/tcp/127.0.0.1/$port" || exit 0
  printf '%s HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\nContent-Length: 0\r\n\r\n' "$1" >&3
  cat <&3
  exec 3>&-
}
port=$1 until=$((SECONDS + $2)) pause=$3
# The Service and its clients learn that the pod is going.
sleep "$pause"
# Each answer ends its connection from here on.
admin 'POST /drain_listeners?graceful&skip_exit' >/dev/null
while [ $SECONDS -lt $until ]; do
  case $(admin 'GET /stats?filter=^http.clients.downstream_rq_active$') in
    *'downstream_rq_active: 0'*) exit 0 ;;
  esac
  sleep 0.2
done
