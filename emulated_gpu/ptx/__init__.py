"""From PTX text to Python: parsing, calls expanded in place, and a function for each basic block.

`isa/` has the instructions, a file a family; what each does when it runs is the business of units/ and machine/."""
