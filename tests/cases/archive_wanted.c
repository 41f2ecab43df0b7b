// A member that main needs; it needs another one itself.
int puts(const char *);
int deeper(int);

int wanted(int x) {
    puts("wanted");
    return deeper(x) + 1;
}
