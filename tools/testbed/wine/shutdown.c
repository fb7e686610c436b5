/* shutdown.exe in place of Wine's, which only prints its arguments: with `/r` or `/s` it ends the session after the seconds
   of `/t` (the host then starts again), and does nothing else. */
#include <stdlib.h>
#include <windows.h>

static int is(const char *argument, char letter)
{
    return (argument[0] == '/' || argument[0] == '-') && (argument[1] | 0x20) == letter && !argument[2];
}

int main(int argc, char **argv)
{
    int i, end = 0;
    DWORD seconds = 0;

    for (i = 1; i < argc; i++) {
        end |= is(argv[i], 'r') || is(argv[i], 's');
        if (is(argv[i], 't') && i + 1 < argc)
            seconds = strtoul(argv[++i], NULL, 10);
    }
    Sleep(seconds * 1000);
    return !end || ExitWindowsEx(EWX_REBOOT | EWX_FORCE, 0) ? 0 : (int)GetLastError();
}
