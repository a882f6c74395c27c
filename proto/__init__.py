"""The contract on the wire: .proto files, their generated messages (pb/), and the reasons of errors."""
