"""`tandem local`: a whole cluster on this machine as background processes."""
