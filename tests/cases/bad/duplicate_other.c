// The second definition.
int twice(void) { return 2; }
