// Defines a symbol that duplicate_other.c defines too.
int twice(void) { return 1; }
int main(void) { return twice(); }
