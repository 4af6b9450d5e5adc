// What program.cpp and driver.cpp need of python.cpp.
bool emulator_python();                // whether there is Python in this process from now on
bool emulator_run(const char *text);   // whether the text has run
