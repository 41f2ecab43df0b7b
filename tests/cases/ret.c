// The smallest program: a result and nothing else.
int main(void) { return 41; }
