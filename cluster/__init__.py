"""The processes: name server, broker and client, speaking the RocketMQ remoting protocol."""
