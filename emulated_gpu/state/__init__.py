"""What a GPU stores and who may rely on it: memories, barriers, and the order of events that the checks go by.

Nothing here runs by itself: units/ and machine/ change it."""
