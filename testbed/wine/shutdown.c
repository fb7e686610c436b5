/* shutdown.exe in place of Wine's, which only prints its arguments. `/r` and `/s` end the session (a host of the test bed
   then starts again), anything else does nothing. InitiateShutdownW and InitiateSystemShutdownExW of Wine do nothing
   either, so ExitWindowsEx it is. */
#include <string.h>
#include <windows.h>

int main(int argc, char **argv)
{
    int i;
    for (i = 1; i < argc; i++)
        if (!_stricmp(argv[i], "/r") || !_stricmp(argv[i], "/s") || !_stricmp(argv[i], "-r") || !_stricmp(argv[i], "-s"))
            return ExitWindowsEx(EWX_REBOOT | EWX_FORCE, 0) ? 0 : (int)GetLastError();
    return 0;
}
