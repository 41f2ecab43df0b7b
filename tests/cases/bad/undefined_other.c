// The second file that refers to the missing function.
int missing_function(int);
int other(void) { return missing_function(2); }
