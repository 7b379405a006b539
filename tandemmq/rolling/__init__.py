"""`tandem rolling-restart`: every server once, in the order of their roles, without a failed send."""
