"""From a wrong result to the operation that made it: graphs taken apart at their anchors, and the parts compared."""
