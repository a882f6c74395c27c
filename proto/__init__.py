"""The contract on the wire: the .proto files, the generated messages (pb/), the reasons of errors, what a report and a load may say."""
