// An exception that nothing catches.
struct Odd { int x; };

__attribute__((noinline)) static void fail(int n) { if (n) throw Odd{n}; }

int main(int argc, char **) { fail(argc + 1); }
