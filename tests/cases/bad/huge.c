// More zero-fill than any reservation may have.
static unsigned char huge[1UL << 44];
int main(int argc, char **argv) {
    (void)argv;
    huge[(1UL << 43) + argc] = 1;
    return huge[0];
}
