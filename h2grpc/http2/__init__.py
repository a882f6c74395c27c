"""One HTTP/2 connection over libnghttp2: bytes in, events and bytes out. No sockets, and no gRPC."""
