// Pulls one member out of an archive, and through it a second one; the third must stay behind.
int puts(const char *);
int wanted(int);

int main(void) {
    puts("main uses the archive");
    return wanted(4);
}
