"""What bits mean: numbers, element types, swizzles, descriptors, tensor maps.

Pure functions of bits; nothing here has state or knows of time."""
