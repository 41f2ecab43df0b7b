// Arguments arrive exactly as sent: no program name is put in front, and argv ends with a null pointer.
int puts(const char *);

int main(int argc, char **argv) {
    for (int i = 0; i < argc; i++)
        puts(argv[i]);
    if (argv[argc])
        return 100;
    if (argc > 0)
        argv[0][0] = '!'; // the strings are writable
    return argc;
}
