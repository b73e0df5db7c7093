"""What says that this node or a GPU of it is going: one file per source."""
