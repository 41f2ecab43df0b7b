// Refers to two symbols that nothing defines, one of them twice.
int missing_function(int);
extern int missing_datum;
int other(void);
int main(void) { return missing_function(missing_datum) + other(); }
