// Console output: puts adds a newline, putchar does not; an empty line, long lines, and many of them.
int puts(const char *);
int putchar(int);
void *memset(void *, int, unsigned long);

int main(void) {
    for (const char *p = "letter by letter\n"; *p; p++)
        if (putchar(*p) != (unsigned char)*p)
            return 100;
    puts("");
    char line[201];
    memset(line, '=', 200);
    line[200] = 0;
    for (int i = 0; i < 20; i++) {
        line[i] = 'a' + i;
        if (puts(line) < 0)
            return 101;
    }
    puts("caf\303\251 \t\001\177");
    return 0;
}
